import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { account } from '../../src/demo/accounts'
import { executable } from './executable'
import { bury, programEnv } from './test-ledger'

export type Serving = { url: string; kill(): Promise<void> }

/**
 * Replaces the shell by the program. A second process reads our end of a pipe, and ends the program
 * when the pipe closes.
 */
const guard = `exec 3<&0
(read -r _ <&3 || kill -9 $$) </dev/null >/dev/null 2>&1 &
exec "$@" 3<&- </dev/null`

/** The program itself with this configuration, as an operator starts it. */
export async function serve(dataDir: string, text: string): Promise<Serving> {
  const file = join(dataDir, 'merchants.toml')
  writeFileSync(file, text)
  const data = join(dataDir, 'data')
  const ledger = await programEnv(data)
  const command = [executable, 'serve', '--config', file]
  const child = Bun.spawn(['sh', '-c', guard, 'sh', ...command, '--data', data], {
    env: { PATH: process.env.PATH ?? '', RELAYER_KEYS: account(0).privateKey, ...ledger },
    stdin: 'pipe',
    stdout: 'ignore',
    stderr: 'pipe',
  })
  let said = ''
  for await (const chunk of child.stderr) {
    said += new TextDecoder().decode(chunk)
    const url = /listens on (\S+)/.exec(said)?.[1]
    if (url === undefined) continue
    return {
      url,
      async kill() {
        child.kill('SIGKILL')
        await child.exited
        child.stdin.write('\n')
        await child.stdin.end()
        bury(data)
      },
    }
  }
  throw new Error(`it did not start: ${said}`)
}
