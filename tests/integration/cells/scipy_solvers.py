"""SciPy integrates, optimizes and works on sparse matrices."""

import numpy as np
from scipy import integrate, optimize, signal, sparse, stats
from scipy.sparse.linalg import spsolve

assert abs(integrate.quad(lambda x: x**2, 0, 5)[0] - 125 / 3) < 1e-9
assert np.allclose(optimize.minimize(optimize.rosen, [1.3, 0.7, 0.8]).x, 1, atol=1e-3)
assert stats.ttest_ind(np.arange(50), np.arange(50) + 100).pvalue < 1e-20

system = sparse.diags([-1.0, 2.5, -1.0], [-1, 0, 1], shape=(500, 500), format="csc")
assert np.allclose(system @ spsolve(system, np.ones(500)), 1)

peaks, _ = signal.find_peaks(np.sin(np.linspace(0, 20 * np.pi, 2000)))
assert len(peaks) == 10
solution = integrate.solve_ivp(lambda t, y: -y, (0, 1), [1.0], rtol=1e-8)
assert abs(solution.y[0, -1] - np.exp(-1)) < 1e-6
print("works")
