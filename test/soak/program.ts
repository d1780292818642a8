import {
  appendFileSync,
  closeSync,
  copyFileSync,
  mkdtempSync,
  openSync,
  writeFileSync,
} from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { executable } from '../harness/executable'
import { fileStore, type Store } from './rows'
import { refunder, relayers } from './setup'

/** The real program, run as an operator runs it, on one data directory. */
export type Program = {
  url: string
  /** Contains merchants.toml, the data directory and the log. */
  directory: string
  store: Store
  command: readonly string[]
  /** From each start to its banner, ms; starts that were killed before do not count. */
  startMs: readonly number[]
  start(): void
  /** Resolves when it listens, or when it ends before that. */
  listening(): Promise<void>
  /** SIGKILL; resolves when it has ended. */
  kill(): Promise<void>
  /** SIGTERM; resolves when it has ended. */
  stop(): Promise<void>
  /** SIGSTOP or SIGCONT. */
  signal(signal: 'SIGSTOP' | 'SIGCONT'): void
  /** Kills it if it still runs. */
  end(): Promise<void>
  /** How it ended without a signal, or with a wrong exit code after one. */
  faults: string[]
  /** When each SIGKILL was sent, unix ms. */
  killedAt: readonly number[]
}

export type ProgramOptions = {
  /** Text of merchants.toml of a program that listens on this port. */
  text(port: number): string
  /** For one of several gateways. */
  gateway?: {
    /** Exists. */
    directory: string
    executable: string
    env: Readonly<Record<string, string>>
    store: Store
    /** Whether it may end so by itself, or so after SIGTERM: it is started again. */
    mayEnd(code: number, said: string): boolean
  }
}

/**
 * The shell replaces itself by the program. A second process reads our end of a pipe, and kills the
 * program when this process ends in any way. Otherwise the program would never end.
 */
const guard = `exec 3<&0
(read -r _ <&3 || kill -9 $$) </dev/null >/dev/null 2>&1 &
exec "$@" 3<&- </dev/null`

/** The program's own limit is 30 s. */
const stopMaxMs = 40_000
/** Pause before the start of a gateway that ended by itself. */
const againMs = 200

/** Of a run. */
export function createDirectory(): string {
  return mkdtempSync(join(tmpdir(), 'turnpike-soak-'))
}

/** Writes the configuration, and the command that runs the program with it. */
async function prepare(options: ProgramOptions) {
  const directory = options.gateway?.directory ?? createDirectory()
  const port = await freePort()
  const config = join(directory, 'merchants.toml')
  writeFileSync(config, options.text(port))
  const [logFile, data] = [join(directory, 'program.log'), join(directory, 'data')]
  const own = options.gateway?.executable ?? copyTo(directory)
  const command = [own, 'serve', '--config', config, '--data', data]
  return { port, directory, logFile, data, command }
}

/** Writes the configuration; nothing runs yet. */
export async function createProgram(options: ProgramOptions): Promise<Program> {
  const { gateway } = options
  const { port, directory, logFile, data, command } = await prepare(options)
  const startMs: number[] = []
  const faults: string[] = []
  const killedAt: number[] = []
  let child: ReturnType<typeof spawn> | undefined
  let isWanted = false
  /** The newest output of stderr: the banner, and the runtime's message at a crash. */
  let said = ''
  let listening = Promise.resolve()

  function signalled(signal: 'SIGKILL' | 'SIGTERM'): Promise<number> {
    if (child === undefined) throw new Error('the program does not run')
    if (signal === 'SIGKILL') killedAt.push(Date.now())
    isWanted = false
    child.kill(signal)
    return child.exited
  }

  const hear = (part: string) => {
    appendFileSync(logFile, part)
    said = (said + part).slice(-4_000)
    return said.includes('listens on')
  }

  function start(): void {
    const started = spawn(command, { directory, logFile, env: gateway?.env })
    child = started
    isWanted = true
    const startedAt = performance.now()
    said = ''
    listening = readBanner(started.stderr, hear).then((listens) => {
      if (listens) startMs.push(performance.now() - startedAt)
    })
    void started.exited.then(async (code) => {
      release(started)
      if (!isWanted || child !== started) return
      if (!gateway?.mayEnd(code, said))
        return void faults.push(`it ended by itself with ${code}\n${said}`)
      await Bun.sleep(againMs)
      if (isWanted && child === started) start()
    })
  }

  return {
    url: `http://127.0.0.1:${port}`,
    directory,
    store: gateway?.store ?? fileStore(join(data, 'turnpike.sqlite')),
    command,
    startMs,
    faults,
    killedAt,
    start,
    listening: () => listening,
    kill: async () => void (await signalled('SIGKILL')),
    signal: (signal) => void child?.kill(signal),
    async end() {
      if (child?.exitCode === null && child.signalCode === null) await signalled('SIGKILL')
    },
    async stop() {
      const code = await withLimit(signalled('SIGTERM'), () => {
        faults.push(`it did not stop within ${stopMaxMs} ms`)
        child?.kill('SIGKILL')
      })
      if (code === 0 || gateway?.mayEnd(code, said)) return
      faults.push(`it stopped with ${code}\n${said}`)
    },
  }
}

/** Ends the second process, which could kill another program with the same pid later. */
function release({ stdin }: ReturnType<typeof spawn>): void {
  stdin.write('\n')
  stdin.end()
}

async function withLimit<T>(work: Promise<T>, late: () => void): Promise<T> {
  const timer = setTimeout(late, stopMaxMs)
  try {
    return await work
  } finally {
    clearTimeout(timer)
  }
}

/** A copy of the executable for this run, which no other process removes. */
export function copyTo(directory: string): string {
  const copy = join(directory, 'turnpike')
  copyFileSync(executable, copy)
  return copy
}

/** Runs the command with that protection; its stdout goes to the log. */
function spawn(
  command: readonly string[],
  {
    directory,
    logFile,
    env,
  }: {
    directory: string
    logFile: string
    env: Readonly<Record<string, string>> | undefined
  },
) {
  const log = openSync(logFile, 'a')
  try {
    return Bun.spawn(['sh', '-c', guard, 'sh', ...command], {
      cwd: directory,
      env: {
        ...{ PATH: process.env.PATH, RELAYER_KEYS: keysOf(relayers) },
        ...{ REFUND_KEY: refunder.privateKey, ...env },
      },
      stdin: 'pipe',
      stdout: log,
      stderr: 'pipe',
    })
  } finally {
    closeSync(log)
  }
}

/** As RELAYER_KEYS takes them. */
export function keysOf(accounts: typeof relayers): string {
  return accounts.map(({ privateKey }) => privateKey).join(',')
}

/**
 * Resolves at the banner with true, or at the end of the output with false. It reads on, because a
 * full pipe would block the program.
 */
function readBanner(
  stderr: ReadableStream<Uint8Array>,
  hear: (part: string) => boolean,
): Promise<boolean> {
  const decoder = new TextDecoder()
  return new Promise((resolve) => {
    const read = async () => {
      for await (const chunk of stderr)
        if (hear(decoder.decode(chunk, { stream: true }))) resolve(true)
      resolve(false)
    }
    read().catch(() => resolve(false))
  })
}

export function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createServer()
    server.on('error', reject)
    server.listen(0, '127.0.0.1', () => {
      const address = server.address()
      server.close(() => resolve(typeof address === 'object' && address ? address.port : 0))
    })
  })
}
