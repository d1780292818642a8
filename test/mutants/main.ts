import '../harness/tmpfs'
import { cpSync, mkdtempSync, rmSync, symlinkSync } from 'node:fs'
import { cpus, tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import * as List from './List'

/**
 * Puts small bugs into copies of the checkout, one at a time, and runs the test that must fail with
 * each. Arguments are parts of files, meanings or tests: then only the mutants with one of them run.
 */

const { values, positionals } = parseArgs({
  args: process.argv.slice(2),
  options: {
    jobs: { type: 'string', default: `${cpus().length}` },
    seconds: { type: 'string', default: '60' },
  },
  allowPositionals: true,
})
const root = join(import.meta.dir, '../..')
const mutants = List.parse(await Bun.file(List.path).text()).filter((mutant) => {
  const text = [mutant.file, mutant.meaning, mutant.test?.file, mutant.test?.pattern].join('\n')
  return positionals.length === 0 || positionals.some((part) => text.includes(part))
})
if (mutants.length === 0) throw new Error(`no mutant has ${positionals.join(' or ')}`)

/** The files that git knows or would add, with a link to the installed packages. */
function copyCheckout(): string {
  const copy = mkdtempSync(join(tmpdir(), 'turnpike-mutants-'))
  const list = ['git', 'ls-files', '-z', '-co', '--exclude-standard']
  for (const path of Bun.spawnSync(list, { cwd: root }).stdout.toString().split('\0'))
    if (path !== '') cpSync(join(root, path), join(copy, path))
  symlinkSync(join(root, 'node_modules'), join(copy, 'node_modules'))
  return copy
}

async function run(command: string[], cwd: string, timeout: number) {
  const options = { cwd, timeout, killSignal: 'SIGKILL', stdout: 'pipe', stderr: 'pipe' } as const
  const child = Bun.spawn(command, options)
  const texts = [child.stdout, child.stderr].map((each) => new Response(each).text())
  const output = (await Promise.all(texts)).join('')
  return { code: await child.exited, isLate: child.signalCode === 'SIGKILL', output }
}

/** Runs the tests of a file whose names have one of the patterns. */
function runTests(copy: string, file: string, patterns: readonly string[]) {
  const pattern = patterns.map(RegExp.escape).join('|')
  const bun = [process.execPath, '--no-orphans', 'test', '--path-ignore-patterns=none']
  return run([...bun, `./${file}`, '-t', pattern], copy, Number(values.seconds) * 1_000)
}

/** Works on all items, each in a copy that is free. */
async function each<T>(items: readonly T[], work: (item: T, copy: string) => Promise<void>) {
  const left = items.values()
  const workIn = async (copy: string) => {
    for (const item of left) await work(item, copy)
  }
  await Promise.all(copies.map(workIn))
}

async function change(copy: string, mutant: List.Mutant) {
  const file = Bun.file(join(copy, mutant.file))
  const source = await file.text()
  const changed = List.apply(mutant, source)
  if (changed === undefined) return undefined
  await file.write(changed)
  return () => file.write(source)
}

/** Longest check of the types, ms. */
const typesMs = 600_000

/** Type errors of all mutants: each round has those that fit into the sources together. */
async function findTypeErrors(copy: string): Promise<string[]> {
  const errors: string[] = []
  for (let left = [...mutants]; left.length > 0; ) {
    const undo = new Map<List.Mutant, () => Promise<unknown>>()
    for (const mutant of left) {
      const back = await change(copy, mutant)
      if (back) undo.set(mutant, back)
    }
    const flags = ['--noEmit', '--noUnusedLocals', 'false', '--noUnusedParameters', 'false']
    const { output, isLate } = await run(['node_modules/.bin/tsc', ...flags], copy, typesMs)
    if (isLate) throw new Error('the types were not checked in time')
    errors.push(...output.split('\n').filter((line) => line.includes('error TS')))
    for (const back of [...undo.values()].toReversed()) await back()
    left = left.filter((mutant) => !undo.has(mutant))
  }
  return errors
}

/** Without a mutant every test passes, and each pattern finds one. */
async function findBaselineFaults(): Promise<string[]> {
  const faults: string[] = []
  const files = Map.groupBy(
    mutants.flatMap(({ test }) => test ?? []),
    ({ file }) => file,
  )
  await each([...files], async ([file, named], copy) => {
    const patterns = [...new Set(named.map(({ pattern }) => pattern))]
    const { code, output } = await runTests(copy, file, patterns)
    if (code !== 0) faults.push(`${file} fails without a mutant:\n${output.slice(-2_000)}`)
    const passed = output.split('\n').filter((line) => line.startsWith('(pass)'))
    for (const pattern of patterns)
      if (!passed.some((line) => line.includes(pattern)))
        faults.push(`${file} has no test with "${pattern}" in its name`)
  })
  return faults
}

const counts = new Map<string, number>()

async function tryMutant(mutant: List.Mutant, copy: string): Promise<void> {
  const { file, meaning, test, survives } = mutant
  const undo = await change(copy, mutant)
  const ran = test && (await runTests(copy, test.file, [test.pattern]))
  await undo?.()
  const isKilled = ran?.isLate ? 'killed by time-out' : 'killed'
  const result = ran === undefined ? 'known to survive' : ran.code === 0 ? 'SURVIVED' : isKilled
  counts.set(result, (counts.get(result) ?? 0) + 1)
  const by = survives ?? /^\(fail\) (.*?)(?: \[[\d.]+ms\])?$/m.exec(ran?.output ?? '')?.[1]
  console.log(`${result}: ${file}: ${meaning}\n  ${test?.file ?? ''} ${by ?? ''}`)
}

const stale = await List.findFaults(mutants, root)
if (stale.length > 0) throw new Error(stale.join('\n'))
const copies = Array.from({ length: Number(values.jobs) }, copyCheckout)
try {
  const [first = root] = copies
  const faults = [...new Set(await findTypeErrors(first)), ...(await findBaselineFaults())]
  if (faults.length > 0) throw new Error(faults.join('\n'))
  await each(mutants, tryMutant)
  console.log([...counts].map(([result, count]) => `${count} ${result}`).join(', '))
  process.exitCode = counts.has('SURVIVED') ? 1 : 0
} finally {
  for (const copy of copies) rmSync(copy, { recursive: true, force: true })
}
