"""The libraries that cocoll is measured against: how to install, start and call them."""
