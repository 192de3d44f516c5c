/** One sandbox: its state and what holds it. */

import { useQuery } from "@tanstack/react-query";
import { get, segment } from "../api/client";
import type { Sandbox as Box } from "../api/types";
import { Isolation } from "../panels/Isolation";
import { ProblemBox } from "../parts/Problems";
import { SandboxHead } from "./SandboxHead";

export default function Sandbox({ id }: { id: string }) {
  const sandbox = useQuery({
    queryKey: ["sandbox", id],
    queryFn: ({ signal }) => get<Box>(`/v1/sandboxes/${segment(id)}`, signal),
    refetchInterval: (query) => (query.state.error ? false : 3000),
  });

  if (!sandbox.data) {
    return (
      <div className="page">
        {sandbox.error ? (
          <ProblemBox error={sandbox.error} retry={() => sandbox.refetch()} />
        ) : (
          <div className="skeleton" />
        )}
      </div>
    );
  }

  return (
    <div className="page">
      <SandboxHead sandbox={sandbox.data} problem={sandbox.error} />
      <Isolation sandbox={sandbox.data} />
    </div>
  );
}
