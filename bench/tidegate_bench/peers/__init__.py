"""The servers that can be measured, each with how it is installed and started."""
