"""What the device and the operators compute, and how well."""
