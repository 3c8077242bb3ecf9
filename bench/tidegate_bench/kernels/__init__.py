"""Each CPU kernel beside torch and beside what the machine's memory and arithmetic allow."""
