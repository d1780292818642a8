import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import { maxUint256 } from 'viem'
import * as Token from '../../src/chain/token'
import { account } from '../../src/demo/accounts'
import { balanceOf, type Chain } from '../../src/demo/chains'
import * as Permit from '../../src/protocol/Permit'
import { executable } from '../harness/executable'
import { age, freshWallet, setTokens, weiOf } from '../harness/sponsor'
import { type TestWorld, testWorld } from '../harness/world'

const network = 'eip155:4663'
let world: TestWorld
let chain: Chain
let token: `0x${string}`
beforeAll(async () => {
  world = await testWorld()
  const found = world.chains[network]
  const asset = world.config.networks.find(({ id }) => id === network)?.asset
  if (!found || !asset) throw new Error('no chain')
  chain = found
  token = asset.address
})
afterAll(() => world?.stop())

async function pay(privateKey: string, options: readonly string[], rpc = chain.url) {
  const url = `${world.url}/m/weather/forecast?latitude=52.52&longitude=13.41`
  const child = Bun.spawn(
    [executable, 'pay', url, '--network', network, '--rpc', rpc, ...options],
    {
      env: { PATH: process.env.PATH ?? '', PAY_KEY: privateKey },
      stdin: 'ignore',
      stdout: 'pipe',
      stderr: 'pipe',
    },
  )
  const [out, err, code] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
    child.exited,
  ])
  return { code, out, err }
}

async function fresh() {
  const wallet = freshWallet()
  await setTokens(chain, token, [wallet.address], 1_000_000n)
  await age(chain)
  return wallet
}

describe('turnpike pay, for a wallet that holds only USDG', () => {
  test('by Permit2 and MPP the wallet is sponsored, approves and buys', async () => {
    const { privateKey, address } = account(5)
    const options = ['--transfer', 'permit2', '--protocol', 'mpp']
    const before = await balanceOf(chain, token, address)
    const ran = await pay(privateKey, options)
    expect(ran.code).toBe(0)
    expect(JSON.parse(ran.out)).toHaveProperty('latitude')
    expect(ran.err).toMatch(/sponsor {4}\d+ wei for the approve, 0x[0-9a-f]{64}/)
    expect(ran.err).toMatch(/approve {4}Permit2 may transfer USDG of 0x\w{40}, 0x[0-9a-f]{64}/)
    expect(ran.err).not.toContain(privateKey.slice(2))
    expect(await balanceOf(chain, token, address)).toBe(before - 5_000n)
    const allowance = Token.allowance(token, address, Permit.permit2Address)
    const left = await chain.rpc('eth_call', [allowance, 'latest'])
    expect(BigInt(String(left))).toBe(maxUint256)
    // Later payments need only a signature.
    const again = await pay(privateKey, options)
    expect(again.code).toBe(0)
    expect(again.err).not.toMatch(/sponsor|approve/)
  })

  test('by Permit2 and x402 a signature replaces the approve', async () => {
    const { privateKey, address } = await fresh()
    const ran = await pay(privateKey, ['--transfer', 'permit2'])
    expect(ran.code).toBe(0)
    expect(ran.err).toContain('permit     Permit2 may transfer 5000 atomic units, by signature')
    expect(ran.err).not.toMatch(/sponsor|approve {4}/)
    expect(await balanceOf(chain, token, address)).toBe(1_000_000n - 5_000n)
    expect(await weiOf(chain, address)).toBe(0n)
  })

  test('by EIP-3009, which it prefers, no gas is requested', async () => {
    const { privateKey, address } = await fresh()
    const ran = await pay(privateKey, [])
    expect(ran.code).toBe(0)
    expect(ran.err).toContain('by eip3009')
    expect(ran.err).not.toContain('sponsor ')
    expect(await weiOf(chain, address)).toBe(0n)
  })

  test('a wallet with gas approves without a grant', async () => {
    const { privateKey, address } = await fresh()
    await chain.rpc('anvil_setBalance', [address, '0x38d7ea4c68000'])
    const ran = await pay(privateKey, ['--transfer', 'permit2', '--protocol', 'mpp'])
    expect(ran.code).toBe(0)
    expect(ran.err).toContain('approve ')
    expect(ran.err).not.toContain('sponsor ')
  })

  test('error: a wallet that is not sponsored gets the reason, and has paid nothing', async () => {
    const wallet = freshWallet()
    await setTokens(chain, token, [wallet.address], 1_000_000n)
    const ran = await pay(wallet.privateKey, ['--transfer', 'permit2', '--protocol', 'mpp'])
    expect(ran.code).toBe(1)
    expect(ran.err).toContain('balance-too-young')
    expect(await balanceOf(chain, token, wallet.address)).toBe(1_000_000n)
  })

  test('error: a node of another chain, or no node, is reported', async () => {
    const { privateKey } = await fresh()
    const other = world.chains['eip155:8453']?.url ?? ''
    const wrong = await pay(privateKey, ['--transfer', 'permit2'], other)
    expect(wrong.code).toBe(1)
    expect(wrong.err).toContain('is chain 8453, not 4663')
    const away = await pay(privateKey, ['--transfer', 'permit2'], 'http://127.0.0.1:1')
    expect(away.code).toBe(1)
    expect(away.err).toContain('127.0.0.1:1: cannot connect; --rpc URL names another node')
    expect((await pay(privateKey, [], 'ftp://x')).err).toContain('--rpc is an http or https URL')
  })
})
