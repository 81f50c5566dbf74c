"""What is wrong with a run, from the numbers that it has stored: rules with a healthy range, a cause and what helps.

`diagnose` judges the steps of a run by every rule; `Watch` sees the reports of one that is training, and tells at once
what its first steps show. Nothing here stops or changes a run.
"""

from shuhari.lab.diagnosis.evidence import Evidence
from shuhari.lab.diagnosis.judge import FINE, RULES, Finding, describe_health, diagnose, judge
from shuhari.lab.diagnosis.rule import Rule
from shuhari.lab.diagnosis.watch import Watch

__all__ = ["FINE", "RULES", "Evidence", "Finding", "Rule", "Watch", "describe_health", "diagnose", "judge"]
