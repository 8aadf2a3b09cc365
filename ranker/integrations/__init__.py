"""The ranker inside other libraries; each file needs the library that it is named for and nothing else."""
