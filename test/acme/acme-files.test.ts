import { afterAll, expect, test } from 'bun:test'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { writePrivate } from '../../src/acme/certificates'

const directory = mkdtempSync(join(tmpdir(), 'turnpike-files-'))
afterAll(() => rmSync(directory, { recursive: true, force: true }))

test.skipIf(process.platform === 'win32')(
  'error: a text for which the disk has no room replaces nothing',
  () => {
    const path = join(directory, 'certificate.pem')
    writePrivate(path, 'old')
    const source = `
      const { writePrivate } = await import(${JSON.stringify(join(import.meta.dir, '../../src/acme/certificates'))})
      try { writePrivate(${JSON.stringify(path)}, 'new '.repeat(4000)) } catch (error) { console.log(error.message) }`
    // A limit of 4096 bytes for a file acts like a full disk: a write ends early, and the next fails.
    const limited = `trap '' XFSZ; ulimit -f 8; exec "$@"`
    const command = ['sh', '-c', limited, 'sh', process.execPath, '-e', source]
    const { stdout } = Bun.spawnSync(command, { env: { ...process.env } })
    expect([stdout.toString(), readFileSync(path, 'utf8')]).toEqual([
      `${path} cannot be written (EFBIG)\n`,
      'old',
    ])
  },
)
