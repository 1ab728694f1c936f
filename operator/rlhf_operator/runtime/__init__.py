"""The running operator: watch, queue, observe, act, poll, elect, report. Decisions are made in ``decide``, never here."""
