"""What several methods share: no file here is a method by itself."""
