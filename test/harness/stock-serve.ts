import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { account } from '../../src/demo/accounts'
import { executable } from './executable'
import { bury, dropDatabaseOf, programEnv } from './test-ledger'

/** The program itself with only the stock desk, to be killed. */
export type StockProgram = {
  directory: string
  dataDir: string
  /** Environment in which other commands of the program find its ledger. */
  ledger: Record<string, string>
  /** URL of the program since its last start. */
  url: string
  start(): Promise<void>
  /** SIGKILL; resolves when the program has ended. */
  kill(): Promise<void>
  remove(): Promise<void>
}

const root = join(import.meta.dir, '..', '..')

/**
 * Replaces the shell by the program. A second process reads our end of a pipe, and ends the program
 * when the pipe closes.
 */
const guard = `exec 3<&0
(read -r _ <&3 || kill -9 $$) </dev/null >/dev/null 2>&1 &
exec "$@" 3<&- </dev/null`

/** Writes the configuration; nothing runs yet. */
export async function createStockProgram(options: {
  rpcUrl: string
  /** Changes the text of the configuration. */
  edit?: (text: string) => string
}): Promise<StockProgram> {
  const directory = mkdtempSync(join(tmpdir(), 'turnpike-stock-'))
  const dataDir = join(directory, 'data')
  const file = join(directory, 'merchants.toml')
  const text = await stockConfiguration(options.rpcUrl)
  writeFileSync(file, options.edit?.(text) ?? text)
  const command = [executable, 'serve', '--config', file]
  // The account that is the desk's by default must be named for a server.
  const ledger = { DESK_KEY: account(0).privateKey, ...(await programEnv(dataDir)) }
  let child: ReturnType<typeof spawn> | undefined

  function spawn() {
    return Bun.spawn(['sh', '-c', guard, 'sh', ...command, '--data', dataDir], {
      env: { PATH: process.env.PATH ?? '', RELAYER_KEYS: account(0).privateKey, ...ledger },
      stdin: 'pipe',
      stdout: 'ignore',
      stderr: 'pipe',
    })
  }

  const program: StockProgram = {
    directory,
    dataDir,
    ledger,
    url: '',
    async start() {
      child = spawn()
      let said = ''
      for await (const chunk of child.stderr) {
        said += new TextDecoder().decode(chunk)
        program.url = /listens on (\S+)/.exec(said)?.[1] ?? program.url
        if (said.includes('listens on')) return
      }
      throw new Error(`it did not start: ${said}`)
    },
    async kill() {
      if (child === undefined) return
      child.kill('SIGKILL')
      await child.exited
      child.stdin.write('\n')
      await child.stdin.end()
      child = undefined
      bury(dataDir)
    },
    async remove() {
      await program.kill()
      await dropDatabaseOf(dataDir)
      rmSync(directory, { recursive: true, force: true })
    },
  }
  return program
}

/** The shipped network and `[stock]`, without merchants. It listens on a free port. */
export async function stockConfiguration(rpcUrl: string): Promise<string> {
  const shipped = await Bun.file(join(root, 'merchants.toml')).text()
  const network = /^\[networks\."eip155:4663"\][\s\S]*?(?=^\[networks\."eip155:8453"\])/m.exec(
    shipped,
  )
  const stock = /^\[stock\][\s\S]*/m.exec(shipped)
  if (!network || !stock) throw new Error('the shipped file has no stocks')
  const budgets = ['gateway', 'facilitator', 'desk', 'sponsor']
    .map((product) => `${product} = "${10n ** 20n}"`)
    .join(', ')
  const service = [
    '[service]',
    'base_url = "http://localhost:4020"',
    'listen = "127.0.0.1:0"',
    `payout = "${account(7).address}"`,
    'mpp_order = ["eip155:4663"]',
    'paid_per_minute = 100000',
    'quote_per_minute = 100000',
    '',
  ]
  const local = network[0]
    .replace(/rpc_urls = \[.*\]/, `rpc_urls = ["${rpcUrl}"]`)
    // Gas on a local chain costs more than on the real one.
    .replace(/gas_per_day_wei = .*/, `gas_per_day_wei = { ${budgets} }`)
  return [...service, local, stock[0]].join('\n')
}
