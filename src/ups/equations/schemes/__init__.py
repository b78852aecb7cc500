"""The numerical methods that equations share."""
