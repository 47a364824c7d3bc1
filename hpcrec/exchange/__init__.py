"""What crosses between dense ranks and the ranks that hold rows. Bytes, not time (that is ``policy``)."""
