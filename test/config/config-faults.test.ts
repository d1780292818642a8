import { afterAll, describe, expect, test } from 'bun:test'
import { pbkdf2Sync } from 'node:crypto'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { HDKey, hdKeyToAccount } from 'viem/accounts'
import { developmentAccounts, documentedPayout } from '../../src/config/cross-checks'
import type { Options } from '../../src/config/merchants'
import { edited, env, linesOf, lineWith, named, payout, read, small } from '../harness/config'
import { cases } from '../harness/fault-cases'

const directory = mkdtempSync(join(tmpdir(), 'turnpike-faults-'))
afterAll(() => rmSync(directory, { recursive: true }))

describe('faults', () => {
  for (const [name, { from, to, at, message, isMore }] of cases) {
    test(`error: ${name}`, () => {
      const text = edited(from, to)
      const { faults } = read(text)
      const line = lineWith(text, at)
      expect(faults.find((fault) => fault.line === line)?.message).toMatch(message)
      if (!isMore) expect(faults).toHaveLength(1)
    })
  }

  test('error: all faults are reported at once, in line order', () => {
    let text = small
    const keys = ['checksum', 'price of zero', 'bad slug', 'listen', 'open facilitator', 'bad tail']
    for (const key of keys) {
      const { from = '', to = '' } = cases.get(key) ?? {}
      text = text.replace(from, () => to)
    }
    const lines = read(text).faults.map(({ line }) => line)
    expect(lines).toHaveLength(keys.length)
    expect(lines).toEqual([...lines].sort((a, b) => a - b))
  })

  test('error: an empty file is reported with the keys that it needs', () => {
    expect(linesOf('')).toEqual([
      'm.toml:1: no network is listed; write networks = ["base"] under [service]',
      'm.toml:1: payout is missing; write payout = "0x..."',
    ])
  })

  test('error: prototype keys are refused', () => {
    expect(linesOf(edited('[stock]', '[__proto__]'))).toHaveLength(1)
  })
})

describe('payouts', () => {
  const asPayout = (value: string, relayers: Options['relayers'] = () => []) =>
    linesOf(edited(`"${named('PAYOUT')}"`, `"${value}"`), { relayers })

  test('error: zero, burn, token, contract, relayer and development accounts', () => {
    for (const [value, message] of [
      ['0x0000000000000000000000000000000000000000', /m.toml:3: payout is the zero address/],
      ['0x000000000000000000000000000000000000dEaD', /burn address/],
      ['0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913', /token contract/],
      ['0xd0601CE157Db5bdC3162BbaC2a2C8aF5320D9EEC', /token contract/],
      ['0x000000000022D473030F116dDEE9F6B43aC78BA3', /contract, not a wallet/],
      ['0xd4EB21209C4D6093f80B5b84f5C45cc093EA14a3', /contract, not a wallet/],
      ['0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266', /development account/],
      [
        documentedPayout,
        /m.toml:3: payout is the example of the documents: write a wallet of yours/,
      ],
      [documentedPayout.toLowerCase(), /payout is the example of the documents/],
    ] as const) {
      const faults = asPayout(value)
      expect(faults).toHaveLength(1)
      expect(faults[0]).toMatch(message)
    }
    expect(asPayout(payout, () => [payout])[0]).toMatch(/relayer of this gateway/)
  })

  test('error: the payout of a merchant is at fault on its own line', () => {
    const text = edited('slug = "two"', `slug = "two"\npayout = "${developmentAccounts[1]}"`)
    expect(linesOf(text)).toEqual([
      expect.stringMatching(`m.toml:${lineWith(text, 'slug = "two"') + 1}: `),
    ])
  })

  test('a chain on this machine may pay development accounts', () => {
    const text = edited(`"${named('PAYOUT')}"`, `"${developmentAccounts[0]}"`)
    const rpcUrls = { 'eip155:8453': 'http://127.0.0.1:8545' } as const
    expect(linesOf(text)).toHaveLength(1)
    expect(linesOf(text, { overrides: { rpcUrls } })).toEqual([])
    const mixed = text.replace(
      '"https://rpc.example.com"',
      '"http://localhost:1", "https://a.example"',
    )
    expect(linesOf(mixed)).toHaveLength(1)
  })

  test('the development accounts are those of the mnemonic', () => {
    const mnemonic = 'test test test test test test test test test test test junk'
    // The seed of BIP-39, which viem would derive again for each of the addresses.
    const root = HDKey.fromMasterSeed(pbkdf2Sync(mnemonic, 'mnemonic', 2048, 64, 'sha512'))
    const derived = Array.from(
      { length: 20 },
      (_, addressIndex) => hdKeyToAccount(root, { addressIndex }).address,
    )
    expect(developmentAccounts).toEqual(derived)
  })
})

describe('secrets stay out of messages', () => {
  test('error: no message shows a value from the environment', () => {
    const secret = 'S3CRET-value\n-of-the-environment'
    for (const [from, to] of [
      ['"127.0.0.1:4020"', named('X')],
      ['"https://pay.example.com"', named('X')],
      ['"https://pay.example.com"', `https://a/${named('X')}?`],
      ['"https://rpc.example.com"', named('X')],
      ['"0x036CbD53842c5426634e7929541eC2318f3dCF7e"', named('X')],
      ['"two"', named('X')],
      ['"/c"', named('X')],
      ['"1"', named('X')],
      ['"none"', named('X')],
      ['"https://two.example.com"', named('X')],
      ['"own"', named('X')],
      ['["eip3009"]', named('X')],
      [`"key-${named('ONE_KEY')}"`, `a${named('X')}`],
    ] as const) {
      const faults = linesOf(edited(from, `"${to}"`), { env: { ...env, X: secret } })
      expect(faults.length).toBeGreaterThan(0)
      expect(faults.join('\n')).not.toMatch(/S3CRET|value\b.*\bof-the/)
    }
  })

  test('error: a payout of the environment is refused without its digits', () => {
    const wrong = '0x036cbD53842c5426634e7929541eC2318f3dCF7e'
    expect(linesOf(small, { env: { ...env, PAYOUT: wrong } })).toEqual([
      'm.toml:3: payout has a wrong EIP-55 checksum: check every digit',
    ])
  })

  test('attack: a private key in place of a payout is refused, and no digit of it is printed', () => {
    const key = 'c0ffee254729296a45a3885639ac7e10f9d54979d5e5e5f9b5f2a7c0ffee2547'
    for (const pasted of [key, `0x${key}`, ` 0x${key.toUpperCase()} `])
      for (const faults of [
        linesOf(small, { env: { ...env, PAYOUT: pasted } }),
        linesOf(small.replace(named('PAYOUT'), pasted)),
      ])
        expect(faults).toEqual(['m.toml:3: payout looks like a private key: treat it as leaked'])
  })

  test('error: a faulty name, a missing file and a name set twice are named', () => {
    const bad = edited('"NVIDIA"', `"${named('NV-1')}"`)
    expect(linesOf(bad)[0]).toMatch(/letters, digits and _/)
    const path = join(directory, 'absent-file')
    const missing = linesOf(small, { env: { PAYOUT_FILE: path } })
    expect(missing).toEqual([
      'm.toml:3: the file that PAYOUT_FILE names cannot be read (ENOENT): name a file that exists',
    ])
    expect(linesOf(small, { env: { ...env, PAYOUT_FILE: path } })).toEqual([
      'm.toml:3: PAYOUT and PAYOUT_FILE are both set: unset one of them',
    ])
  })
})

test('error: bytes that are not UTF-8 are a fault of their line', () => {
  const bytes = Buffer.from(edited('slug = "two"', 'slug = "two" # caf?'))
  bytes[bytes.indexOf('?')] = 0xe9
  expect(linesOf(bytes.toString('utf8'))).toEqual([
    `m.toml:${lineWith(small, 'slug = "two"')}: the bytes here are not UTF-8: save the file as UTF-8`,
  ])
})
