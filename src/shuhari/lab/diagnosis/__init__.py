"""What is wrong with a run, judged from its stored numbers by rules: a healthy range, a likely cause, a remedy.

`diagnose` applies every rule to the steps of a run; `Watch` reads the reports of a run in training and raises alarms
about its first steps. Nothing here stops or changes a run.
"""

from shuhari.lab.diagnosis.evidence import Evidence
from shuhari.lab.diagnosis.judge import FINE, RULES, Finding, describe_health, diagnose, judge
from shuhari.lab.diagnosis.rule import Rule
from shuhari.lab.diagnosis.watch import Watch

__all__ = ["FINE", "RULES", "Evidence", "Finding", "Rule", "Watch", "describe_health", "diagnose", "judge"]
