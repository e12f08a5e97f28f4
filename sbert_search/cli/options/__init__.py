"""Options that several commands share, and the configuration file that sets them."""
