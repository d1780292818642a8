import { existsSync, mkdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { runProgram } from '../build'
import { runtimeVersion, type Target } from './targets'

/** Why a runtime cannot be used. */
export class RuntimeError extends Error {
  override readonly name = 'RuntimeError'
}

type Package = Pick<Target, 'package' | 'executable' | 'integrity'>

/**
 * Downloads the runtime of a target from the npm registry into a directory and checks it. Returns
 * the path of its executable. The compiler would download one itself, and not check it. Throws
 * RuntimeError.
 */
export async function fetchRuntime(target: Package, directory: string): Promise<string> {
  mkdirSync(directory, { recursive: true })
  const wanted = `${target.package}@${runtimeVersion}`
  const packed = await runProgram([
    'npm',
    'pack',
    wanted,
    '--json',
    '--pack-destination',
    directory,
  ])
  if (packed.code !== 0) throw new RuntimeError(`npm pack ${wanted}: ${reasonOf(packed.problems)}`)
  const archive = join(directory, fileNameIn(packed.out))
  const digest = new Bun.CryptoHasher('sha512').update(readFileSync(archive)).digest('base64')
  const found = `sha512-${digest}`
  if (found !== target.integrity)
    throw new RuntimeError(
      `${target.package} is not the expected archive: ${found}, not ${target.integrity}`,
    )
  const unpacked = await runProgram(['tar', '-xzf', archive, '-C', directory])
  if (unpacked.code !== 0) throw new RuntimeError(`tar: ${unpacked.problems.trim()}`)
  const executable = join(directory, 'package', target.executable)
  if (!existsSync(executable)) throw new RuntimeError(`${wanted} has no ${target.executable}`)
  return executable
}

/** The name of the archive in the JSON of `npm pack`. */
function fileNameIn(json: string): string {
  const [first]: { filename?: unknown }[] = JSON.parse(json)
  const name = first?.filename
  // Older versions of npm print the scope of the package with its slash.
  if (typeof name === 'string') return name.replace(/^@/, '').replace('/', '-')
  throw new RuntimeError('npm pack names no archive')
}

/** The lines of npm that say why, without those about its log. */
function reasonOf(problems: string): string {
  const lines = problems.split('\n').filter((line) => /^npm (error|ERR!) /.test(line))
  const said = lines.filter((line) => !line.includes('complete log of this run'))
  return said.slice(0, 3).join('; ') || 'it failed without a reason'
}
