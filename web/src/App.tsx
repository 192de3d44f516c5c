/** The frame around the views: who is logged in, where one can go, and the login where it is needed. */

import { QueryClient, QueryClientProvider, useQuery, useQueryClient } from "@tanstack/react-query";
import { lazy, Suspense, useEffect, useState } from "react";
import { Route, Router, Switch } from "wouter";
import { get, send, whenLoginIsNeeded } from "./api/client";
import { asProblem } from "./api/problem";
import type { Me } from "./api/types";
import { Empty, ProblemBox } from "./parts/Problems";
import { Shell } from "./parts/Shell";
import { Login } from "./views/Login";
import { Sandboxes } from "./views/Sandboxes";

const Sandbox = lazy(() => import("./views/Sandbox"));
const Keys = lazy(() => import("./views/Keys"));
const Usage = lazy(() => import("./views/Usage"));
const Queue = lazy(() => import("./views/Queue"));

const client = new QueryClient({
  defaultOptions: {
    queries: {
      retry: (count, error) => count < 2 && asProblem(error).isPassing,
      refetchOnWindowFocus: true,
      staleTime: 1000,
    },
  },
});

export function App({ code }: { code: string | null }) {
  return (
    <QueryClientProvider client={client}>
      <Router base="/console">
        <Gate code={code} />
      </Router>
    </QueryClientProvider>
  );
}

type Standing = "unknown" | "in" | "out";

function Gate({ code }: { code: string | null }) {
  const queries = useQueryClient();
  const [isWanted, setWanted] = useState(false);
  const [codeProblem, setCodeProblem] = useState<unknown>(null);
  const [isCodeUsed, setCodeUsed] = useState(code === null);
  const me = useQuery({
    queryKey: ["me"],
    queryFn: ({ signal }) => get<Me>("/v1/me", signal),
    enabled: isCodeUsed,
  });

  useEffect(() => whenLoginIsNeeded(() => setWanted(true)), []);
  useEffect(() => {
    if (code === null) return;
    enter(code)
      .catch(setCodeProblem)
      .finally(() => setCodeUsed(true));
  }, [code]);

  const standing = standingOf(isCodeUsed, me);
  const entered = () => {
    setWanted(false);
    setCodeProblem(null);
    queries.invalidateQueries();
  };

  if (standing === "unknown") {
    if (me.error && asProblem(me.error).status !== 401) {
      return (
        <main className="alone">
          <ProblemBox error={me.error} retry={() => me.refetch()} />
        </main>
      );
    }
    return null;
  }
  if (standing === "out" || !me.data) return <Login entered={entered} codeProblem={codeProblem} />;

  return (
    <>
      <Shell me={me.data}>
        <Suspense fallback={<div className="skeleton" />}>
          <Switch>
            <Route path="/">{() => <Sandboxes />}</Route>
            <Route path="/sandboxes">{() => <Sandboxes />}</Route>
            <Route path="/sandboxes/:id">{({ id }) => <Sandbox key={id} id={id} />}</Route>
            <Route path="/keys">{() => <Keys />}</Route>
            <Route path="/usage">{() => <Usage />}</Route>
            <Route path="/queue">{() => <Queue />}</Route>
            <Route>{() => <Empty title="There is no such page." />}</Route>
          </Switch>
        </Suspense>
      </Shell>
      {isWanted && <Login entered={entered} isOver codeProblem={null} />}
    </>
  );
}

function standingOf(isCodeUsed: boolean, me: { data: Me | undefined; error: unknown }): Standing {
  if (!isCodeUsed) return "unknown";
  if (me.data) return "in";
  return me.error && asProblem(me.error).status === 401 ? "out" : "unknown";
}

// Effects run twice while developing, and a code counts once.
let entering: Promise<void> | null = null;

function enter(code: string): Promise<void> {
  entering ??= send("POST", "/v1/login", { code });
  return entering;
}
