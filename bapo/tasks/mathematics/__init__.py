"""Mathematics: worked arithmetic and sets from the Hub. Imports no engine, no method and no other task."""
