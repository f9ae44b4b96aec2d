"""From the ops' scalar rules to code for a device."""
