/** The catalog, or one playbook with its editor; `params.rest` is its path. */
import { useLocation } from "../common/router";
import { Catalog } from "./catalog";
import { NewPlaybook, RegisteredPlaybook } from "./page";

export function Playbooks({ params }: { params: Record<string, string> }) {
  const { query } = useLocation();
  if (params.rest) return <RegisteredPlaybook key={`${params.rest}@${query.get("version") ?? ""}`} path={params.rest} />;
  return query.has("new") ? <NewPlaybook /> : <Catalog />;
}
