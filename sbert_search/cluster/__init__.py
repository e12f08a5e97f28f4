"""Work on several machines, which Ray connects; needs the extra ray."""
