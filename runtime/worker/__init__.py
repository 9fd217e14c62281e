"""Device side of the engine: executes one step at a time. Its input is a StepPlan, its output BlockResults."""
