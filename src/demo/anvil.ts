import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

const packages: Readonly<Record<string, string>> = {
  'darwin-arm64': '@foundry-rs/anvil-darwin-arm64/bin/anvil',
  'darwin-x64': '@foundry-rs/anvil-darwin-amd64/bin/anvil',
  'linux-arm64': '@foundry-rs/anvil-linux-arm64/bin/anvil',
  'linux-x64': '@foundry-rs/anvil-linux-amd64/bin/anvil',
  'win32-x64': '@foundry-rs/anvil-win32-amd64/bin/anvil.exe',
}

/**
 * The shell replaces itself by anvil, so that the pid is anvil's. A second process reads our end of
 * a pipe, and kills anvil when the pipe closes: on stop(), and when this process ends, even by
 * SIGKILL. It kills the whole group, because the launcher of npm runs anvil as its child. A line
 * through the pipe ends the reader after anvil ended by itself. `$0` is the directory of anvil's
 * states, which is removed with it.
 */
const guard = `exec 3<&0
(read -r _ <&3; code=$?; rm -rf "$0"; [ $code = 0 ] || kill -9 -$$) </dev/null >/dev/null 2>&1 &
exec "$@" 3<&- </dev/null`

/**
 * Starts anvil on a free port unless `--port` is among the arguments, and waits until it listens.
 * Throws an installation hint without anvil, or anvil's output when it ended.
 */
export async function startAnvil(args: readonly string[], anvil = findAnvil()) {
  // anvil writes old states to disk. In its default directory a killed anvil would leave them
  // behind.
  const states = mkdtempSync(join(tmpdir(), 'turnpike-anvil-'))
  const command = [anvil, '--cache-path', states, ...args]
  const guarded = process.platform !== 'win32'
  const child = Bun.spawn(guarded ? ['sh', '-c', guard, states, ...command] : command, {
    stdin: 'pipe',
    stdout: 'pipe',
    stderr: 'pipe',
    // A Ctrl-C in the terminal is for this process: anvil must outlive the payments in flight.
    detached: guarded,
  })
  const release = child.exited.then(() => {
    try {
      child.stdin.write('\n')
      child.stdin.end()
    } catch {
      // The pipe is closed already: the reader has ended.
    }
    rmSync(states, { recursive: true, force: true })
  })
  /** Ends the process; resolves when it has ended. */
  const stop = async () => {
    child.stdin.end()
    if (!guarded) child.kill('SIGKILL')
    await release
  }
  const port = await readPort(child.stdout)
  if (port === undefined) {
    await stop()
    throw new Error(`anvil did not start: ${(await new Response(child.stderr).text()).trim()}`)
  }
  void drain(child.stderr[Symbol.asyncIterator]())
  return { port, pid: child.pid, stop }
}

/**
 * Reads until anvil prints its port, then keeps the pipe empty. Undefined when the output ends
 * first.
 */
async function readPort(stdout: ReadableStream<Uint8Array>): Promise<number | undefined> {
  const chunks = stdout[Symbol.asyncIterator]()
  const decoder = new TextDecoder()
  let text = ''
  for (;;) {
    const { done, value } = await chunks.next()
    if (done) return undefined
    text += decoder.decode(value, { stream: true })
    const match = /Listening on \S+:(\d+)\s/.exec(text)
    if (!match) continue
    void drain(chunks)
    return Number(match[1])
  }
}

/** Reads on, because a full pipe would block anvil. */
async function drain(chunks: AsyncIterator<Uint8Array>): Promise<void> {
  while (!(await chunks.next()).done);
}

/** Path of the anvil binary: the npm package of this platform, else Foundry's on the PATH. */
function findAnvil(): string {
  const name = packages[`${process.platform}-${process.arch}`]
  const found = (name && findInstalled(name)) ?? Bun.which('anvil')
  if (found) return found
  throw new Error(
    'local chains need anvil: run "bun install" in the project, ' +
      'or install Foundry (https://getfoundry.sh) so that anvil is on the PATH',
  )
}

/**
 * Path of a file of a package. Resolved at run time, from here and from the current directory: the
 * shipped executable contains no packages.
 */
export function findInstalled(path: string): string | undefined {
  for (const directory of [import.meta.dir, process.cwd()]) {
    try {
      return Bun.resolveSync(path, join(directory, 'anvil'))
    } catch {
      // Not installed there.
    }
  }
  return undefined
}
