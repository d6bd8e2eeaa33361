/** The catalog of playbooks, and one of them with its editor: `params.rest` is its path. */
import "./playbooks.css";
import { usePlace } from "../frame/router";
import { Catalog } from "./catalog";
import { NewPlaybook, RegisteredPlaybook } from "./page";

export function Playbooks({ params }: { params: Record<string, string> }) {
  const { query } = usePlace();
  if (params.rest) return <RegisteredPlaybook key={`${params.rest}@${query.get("version") ?? ""}`} path={params.rest} />;
  return query.has("new") ? <NewPlaybook /> : <Catalog />;
}
