"""What the tests share: stand-ins, small worlds, recorded folders."""
