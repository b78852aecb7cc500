"""What The Well's own package says of a folder of files. Run by its interpreter: `python well_referee.py TASK …`.

open FOLDER OUT       every trajectory of a split as WellDataset gives it, to OUT (.npz), and names to OUT.json
normalise FOLDER OUT  the same, normalised by the folder's stats.yaml
dummy FILE            the package's own example file
"""

import json
import sys
import warnings

import numpy as np


def opened(folder: str, out: str, normalise: bool) -> None:
    from the_well.data.datasets import WellDataset
    from the_well.data.normalization import ZScoreNormalization

    options = {"use_normalization": True, "normalization_type": ZScoreNormalization} if normalise else {}
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        dataset = WellDataset(
            path=folder, well_split_name="train", full_trajectory_mode=True, normalize_time_grid=False, **options
        )
        samples = [dataset[number] for number in range(len(dataset))]
    arrays = {key: np.stack([np.asarray(sample[key]) for sample in samples]) for key in samples[0]}
    np.savez(out, **arrays)
    meta = dataset.metadata
    said = {
        "dataset_name": meta.dataset_name,
        "n_spatial_dims": int(meta.n_spatial_dims),
        "spatial_resolution": list(meta.spatial_resolution),
        "scalar_names": meta.scalar_names,
        "constant_scalar_names": meta.constant_scalar_names,
        "field_names": {str(order): list(names) for order, names in meta.field_names.items()},
        "constant_field_names": {str(order): list(names) for order, names in meta.constant_field_names.items()},
        "boundary_condition_types": sorted(meta.boundary_condition_types),
        "n_files": meta.n_files,
        "n_trajectories_per_file": meta.n_trajectories_per_file,
        "n_steps_per_trajectory": meta.n_steps_per_trajectory,
        "grid_type": meta.grid_type,
    }
    with open(f"{out}.json", "w") as file:
        json.dump(said, file)


def main(act: str, *paths: str) -> None:
    if act == "dummy":
        from the_well.utils.dummy_data import write_dummy_data

        write_dummy_data(paths[0])
    else:
        opened(paths[0], paths[1], act == "normalise")


if __name__ == "__main__":
    main(*sys.argv[1:])
