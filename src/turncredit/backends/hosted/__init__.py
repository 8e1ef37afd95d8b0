"""What all hosted trainers share. No service's package is imported here."""
