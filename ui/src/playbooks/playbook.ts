/** A playbook of the catalog as returned by the API, and its paths. */
import type { Diagnostic } from "../common/api";

export interface Stored {
  path: string;
  version: number;
  digest: string;
  registered_at: string;
  name: string;
  description: string;
  steps: number;
  content?: string;
  last_execution?: { execution_id: string; status: string } | null;
}

export interface Checked {
  valid: boolean;
  diagnostics: Diagnostic[];
  docs: string;
}

const encoded = (path: string) => path.split("/").map(encodeURIComponent).join("/");

/** The path of a playbook's page. */
export const pagePath = (path: string) => `/playbooks/${encoded(path)}`;

/** The API path of a playbook. */
export const catalogPath = (path: string) => `/api/catalog/${encoded(path)}`;
export const versionsPath = (path: string) => `/api/versions/${encoded(path)}`;
