"""Records a capture of an unmodified training script.

`launch` starts the script and sums up; `agent` runs inside each process of it; `options` and `plan` are what both know;
`folder` is what lies in a recording and how it is read.
"""
