import { rmSync } from 'node:fs'
import { join } from 'node:path'
import type { Audit } from './audit'
import { type Finding, kinds } from './finding'

/** Most printed findings of a kind. */
const explainedMax = 5

export type Report = Audit & {
  title: string
  directory: string
  explain?: ((finding: Finding) => string) | undefined
}

/**
 * Prints the figures, the counts and the findings. Removes the directory when there is no finding,
 * else names it and keeps all but the executable. `explain` says more of a finding. Returns the exit
 * code.
 */
export function conclude({ title, figures, findings, directory, explain }: Report): number {
  const counts = kinds.map(
    (kind) => [kind, findings.filter((finding) => finding.kind === kind).length] as const,
  )
  const rows = [...figures, ...counts]
  const width = Math.max(...rows.map(([name]) => name.length))
  const line = ([name, value]: (typeof rows)[number]) =>
    `${name.padEnd(width)}  ${String(value).padStart(8)}`
  const table = [title, ...figures.map(line), '-'.repeat(width + 10), ...counts.map(line)]
  process.stdout.write(`${table.join('\n')}\n`)
  for (const kind of kinds) {
    const found = findings.filter((finding) => finding.kind === kind)
    for (const finding of found.slice(0, explainedMax))
      process.stdout.write(`\n${kind}: ${finding.text}\n${explain?.(finding) ?? ''}`)
  }
  if (findings.length === 0) rmSync(directory, { recursive: true, force: true })
  else {
    for (const name of ['turnpike', 'turnpike.map']) rmSync(join(directory, name), { force: true })
    process.stdout.write(`\nkept for a look: ${directory}\n`)
  }
  return findings.length === 0 ? 0 : 1
}
