"""What can be solved exactly: tables and linear learners."""
