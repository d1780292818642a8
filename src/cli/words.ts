import { readFileSync } from 'node:fs'
import type { Config, Merchant } from '../config/Config'
import { codeOf } from '../config/env'
import { index, lineOf } from '../config/lines'
import { format, parseConfig } from '../config/merchants'
import type { Warning } from '../config/warnings'
import { CommandError, type Context } from './Command'

/** Why a configuration cannot be read, and what to do. */
export function unreadable(file: string, error: unknown): string {
  const code = codeOf(error)
  if (code !== 'ENOENT') return `${file} cannot be read (${code}): make it readable for this user`
  const init = file === 'merchants.toml' ? 'init' : `init --config ${file}`
  return `there is no ${file}.
  turnpike ${init}  asks five questions and writes it
  turnpike demo  runs samples on local chains, without a file and without keys`
}

/** Throws CommandError with every fault of the file. */
export function configurationOf({ file, env }: Pick<Context, 'file' | 'env'>): Config {
  let text: string
  try {
    text = readFileSync(file, 'utf8')
  } catch (error) {
    throw new CommandError(unreadable(file, error))
  }
  const { config, faults } = parseConfig(text, { file, env })
  if (config === undefined) throw new CommandError(faults.map(format).join('\nturnpike: '))
  return config
}

/** Findings as `file:line: message`, each at its place. */
export function placed(
  findings: readonly Warning[],
  { file, text }: { file: string; text: string },
): { line: number; text: string }[] {
  // The index of a large file takes half a second.
  if (findings.length === 0) return []
  const lines = index(text)
  return findings.map(({ path, message }) => {
    const line = lineOf(lines, path)
    return { line, text: format({ file, line, message }) }
  })
}

/** Warnings as they are printed. Unlike faults, they do not change the exit code. */
export function warn(...found: Parameters<typeof placed>): string[] {
  return placed(...found).map(({ text }) => `warning: ${text}`)
}

/** The command that runs this program from a shell in the current directory. */
export function self(): string {
  if (!isCompiled()) return `npx --yes bun@${Bun.version} src/main.ts`
  // Set by src/release/launcher.ts: the path of the executable is in a cache of npm.
  return process.env.TURNPIKE_COMMAND ?? process.execPath
}

/** Whether this is the executable, not a checkout. */
export function isCompiled(): boolean {
  return import.meta.dir.startsWith('/$bunfs') || import.meta.dir.includes('~BUN')
}

/** `1 merchant sells 1 route`, or `1 merchant sells 2 routes and 1 pass`. */
export function salesOf(merchants: readonly Pick<Merchant, 'routes'>[]): string {
  const all = merchants.flatMap(({ routes }) => routes)
  const passes = all.filter(({ passOf }) => passOf !== undefined).length
  const routes = all.length - passes
  const sellers = merchants.length === 1 ? '1 merchant sells' : `${merchants.length} merchants sell`
  const also = passes === 0 ? '' : ` and ${passes === 1 ? '1 pass' : `${passes} passes`}`
  return `${sellers} ${routes === 1 ? '1 route' : `${routes} routes`}${also}`
}
