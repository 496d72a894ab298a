"""The techniques that findings recommend, each written once: what it is, the edit that makes it, how it is written by
hand and in the frameworks, and what could go wrong. Rules add where it applies and how to verify it.
"""

from trace_doctor_rules.techniques.arithmetic import *
from trace_doctor_rules.techniques.attention import *
from trace_doctor_rules.techniques.compiling import *
from trace_doctor_rules.techniques.data import *
from trace_doctor_rules.techniques.host import *
from trace_doctor_rules.techniques.memory import *
from trace_doctor_rules.techniques.ranks import *
from trace_doctor_rules.techniques.serving import *
from trace_doctor_rules.techniques.waits import *
