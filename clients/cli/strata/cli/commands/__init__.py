"""The commands of ``strata``, one module each."""
