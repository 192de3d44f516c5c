/** JSON as it was written: where a number has more digits than one of JavaScript, its text is read once more. */

import { useQuery } from "@tanstack/react-query";
import { ask } from "../api/client";
import { isExact, laidOut } from "./json";
import { Plain } from "./Plain";

/** Shows a value, whose text is at a path. */
export function JsonView({ value, path }: { value: unknown; path: string | null }) {
  const parsed = JSON.stringify(value);
  const isWhole = isExact(value);
  const text = useQuery({
    queryKey: ["result text", path, parsed],
    queryFn: async ({ signal }) =>
      (await ask(`${path}/application%2Fjson`, { signal, accept: "*/*" })).text(),
    enabled: !isWhole && path !== null,
    staleTime: Number.POSITIVE_INFINITY,
    retry: false,
  });

  if (text.isLoading) return <div className="skeleton" />;
  return (
    <>
      <Plain text={laidOut(text.data ?? parsed)} />
      {!isWhole && !text.data && (
        <p className="note">Its long numbers are shown as JavaScript reads them, rounded.</p>
      )}
    </>
  );
}
