"""Every scenario by its name; knows nothing of what they do."""

from tests.failing_files import linked, models, scenarios
from tests.failing_files.scenarios import Scenario

SCENARIOS: dict[str, type[Scenario]] = {
    "first": scenarios.First,
    "increment": scenarios.Increment,
    "long": scenarios.Long,
    "retried": scenarios.Retried,
    "again": scenarios.Again,
    "linked": linked.Linked,
    "resume": scenarios.Resume,
    "damaged": scenarios.Damaged,
    "notes": scenarios.Notes,
    "first notes": scenarios.FirstNotes,
    "prepare": scenarios.Prepare,
    "prepare one": scenarios.PrepareOne,
    "prepare restart": scenarios.PrepareRestart,
    "data": scenarios.Data,
    "train": models.Train,
    "export": models.Export,
    "predict": models.Predict,
}
