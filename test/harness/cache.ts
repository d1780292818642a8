import {
  existsSync,
  linkSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  realpathSync,
  renameSync,
  rmSync,
  statSync,
  utimesSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'

const root = join(import.meta.dir, '..', '..')
// Below node_modules, so that external packages are found from here. A program names itself by its real
// path, also where node_modules is a link.
const cache = join(realpathSync(join(root, 'node_modules')), '.cache', 'turnpike-test')
/** What no run used for this long is removed: a day of edits would leave gigabytes. */
const keptMs = 3_600_000
/** Making takes seconds. */
const lockedMaxMs = 60_000

/**
 * A directory that `make` fills once for each state of the sources, shared by the files and the runs
 * that test that state. While one process makes it, the others wait.
 */
export async function cached(
  kind: string,
  make: (directory: string) => Promise<void>,
): Promise<string> {
  const directory = join(
    cache,
    `${kind}-${await stateOf(['src', 'db', 'package.json', 'bun.lock'])}`,
  )
  mkdirSync(cache, { recursive: true })
  const lock = `${directory}.lock`
  while (!existsSync(directory)) {
    if (!take(lock)) {
      await Bun.sleep(20)
      continue
    }
    try {
      if (!existsSync(directory)) await makeAt(directory, make)
    } finally {
      rmSync(lock, { force: true })
    }
  }
  utimesSync(directory, new Date(), new Date())
  return directory
}

async function makeAt(
  directory: string,
  make: (directory: string) => Promise<void>,
): Promise<void> {
  removeOld()
  const made = mkdtempSync(join(cache, 'new-'))
  try {
    await make(made)
    renameSync(made, directory)
  } catch (error) {
    rmSync(made, { recursive: true, force: true })
    // Another process has made the same first.
    if (!existsSync(directory)) throw error
  }
}

/** Whether the lock is ours now. One that was left behind is removed. */
function take(lock: string): boolean {
  const own = `${lock}-${process.pid}`
  // A link appears with its content, so that no other process reads an empty lock.
  writeFileSync(own, `${process.pid}`)
  try {
    linkSync(own, lock)
    return true
  } catch {
    if (isLeft(lock)) rmSync(lock, { force: true })
    return false
  } finally {
    rmSync(own)
  }
}

/** Whether the process with this lock has ended, or another one has its pid now. */
function isLeft(lock: string): boolean {
  try {
    if (statSync(lock).mtimeMs < Date.now() - lockedMaxMs) return true
    process.kill(Number(readFileSync(lock, 'utf8')), 0)
    return false
  } catch (error) {
    // No lock: the next look shows why.
    return (error as NodeJS.ErrnoException).code === 'ESRCH'
  }
}

/** A digest of the files with these names and below these folders. */
async function stateOf(names: readonly string[]): Promise<string> {
  const files = names.flatMap((name) =>
    statSync(join(root, name)).isFile()
      ? [name]
      : [...new Bun.Glob('**/*').scanSync({ cwd: join(root, name) })].map((file) =>
          join(name, file),
        ),
  )
  const hasher = new Bun.CryptoHasher('sha256').update(Bun.version)
  for (const file of files.sort())
    hasher.update(`\0${file}\0`).update(await Bun.file(join(root, file)).bytes())
  return hasher.digest('hex')
}

function removeOld(): void {
  const before = Date.now() - keptMs
  for (const name of readdirSync(cache)) {
    const path = join(cache, name)
    if (statSync(path).mtimeMs < before) rmSync(path, { recursive: true, force: true })
  }
}
