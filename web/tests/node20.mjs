// What vitest's reporters need of Node 21, and Node 20 lacks: without it a test that fails has no name.
Map.groupBy ??= (items, keyOf) => {
  const groups = new Map();
  let index = 0;

  for (const item of items) {
    const key = keyOf(item, index++);
    groups.set(key, [...(groups.get(key) ?? []), item]);
  }

  return groups;
};
