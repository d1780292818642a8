import type { Option } from './Command'

export const config: Option = { value: 'FILE', help: 'configuration (default: merchants.toml)' }
export const data: Option = { value: 'DIR', help: 'data directory (default: ./data)' }

/** The paths that the options name, or their defaults. */
export function places(values: { config?: string; data?: string }): {
  file: string
  dataDir: string
} {
  return { file: values.config ?? 'merchants.toml', dataDir: values.data ?? 'data' }
}

/** Prints a line on stdout. */
export function print(line: string): void {
  process.stdout.write(`${line}\n`)
}
