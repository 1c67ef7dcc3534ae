"""PENCIL in scikit-learn: a cross-validated pipeline on tabular data, and its corrected labels.

Run it: python examples/sklearn_pipeline.py

With 57 noisy held-out rows, the estimated noise rate depends on which rows they are: with random_state=0 it is 4 %,
where a quarter of the labels is wrong, and hardly any label is corrected. With this few rows, try several seeds.
"""

from sklearn.datasets import load_breast_cancer
from sklearn.metrics import accuracy_score
from sklearn.model_selection import cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from pencil import PencilClassifier
from pencil.data.noise import flip, symmetric_matrix


def classifier(method, epochs):
    return make_pipeline(StandardScaler(), PencilClassifier("mlp", method=method, epochs=epochs, random_state=1))


def main(epochs=40, folds=3):
    x, clean = load_breast_cancer(return_X_y=True)
    given = flip(clean, symmetric_matrix(2, 0.5), seed=0).labels
    scores = {}
    for method in ("cross_entropy", "pencil"):
        predicted = cross_val_predict(classifier(method, epochs), x, given, cv=folds)
        scores[method] = accuracy_score(clean, predicted)
        print(f"{method}: {scores[method]:.1%} accuracy on held-out rows, measured against clean labels")
    agreement = cross_val_score(
        classifier("pencil", epochs), x, given, cv=folds
    )  # what can be measured without clean labels
    print(f"pencil agrees with {agreement.mean():.1%} of the given held-out labels, a quarter of which are wrong")
    pipeline = classifier("pencil", epochs).fit(x, given)
    corrected = pipeline[-1].labels_
    right = [accuracy_score(clean, found) for found in (given, corrected)]
    print(f"training labels right: as given {right[0]:.1%}, corrected {right[1]:.1%}")
    print("the first that changed:", (given != corrected).nonzero()[0][:10].tolist())
    return scores, right


if __name__ == "__main__":
    main()
