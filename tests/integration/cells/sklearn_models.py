"""scikit-learn fits models in several processes and threads at once."""

import os
import warnings

from joblib import Parallel, delayed
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

# Everything that joblib has to say about semaphores, shared memory or cores it cannot count is a fault here.
warnings.simplefilter("error")

features, classes = load_iris(return_X_y=True)
forest = RandomForestClassifier(n_estimators=40, n_jobs=2, random_state=1).fit(features, classes)
assert forest.score(features, classes) > 0.95

model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=200))
assert cross_val_score(model, features, classes, cv=4, n_jobs=2).mean() > 0.9

pids = Parallel(n_jobs=2, backend="loky")(delayed(os.getpid)() for _ in range(4))
assert os.getpid() not in pids
print("works")
