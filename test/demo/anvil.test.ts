import { expect, test } from 'bun:test'
import { pbkdf2Sync } from 'node:crypto'
import { connect } from 'node:net'
import { join } from 'node:path'
import { type Address, getAddress, type Hex } from 'viem'
import { HDKey, hdKeyToAccount } from 'viem/accounts'
import { account, accounts, mnemonic } from '../../src/demo/accounts'
import { startAnvil } from '../../src/demo/anvil'
import { mine, receiptOf } from '../../src/demo/chains'
import * as Artifacts from '../../src/demo/contracts/artifacts'
import { digest, digestPath } from '../../src/demo/contracts/build'
import { setAutomine, startChain, startChains } from '../harness/chains'
import { outcomeOf } from '../harness/outcome'
import { encode, payee, sepolia } from '../harness/stablecoin'

const token = Artifacts.Stablecoin.abi

test('sources, settings, compiler and artifacts are those of the last build', async () => {
  const isFresh = digest() === (await Bun.file(digestPath).text())
  expect(isFresh, 'stale: run bun src/demo/contracts/build.ts').toBe(true)
})

test('the accounts are those of the mnemonic', () => {
  // BIP-39; viem would stretch the mnemonic again for each account, in JavaScript.
  const seed = pbkdf2Sync(mnemonic, 'mnemonic', 2048, 64, 'sha512')
  const key = HDKey.fromMasterSeed(seed)
  for (const { index, address, local } of accounts) {
    expect(hdKeyToAccount(key, { addressIndex: index }).address).toBe(address)
    expect(local().address).toBe(address)
  }
})

test('blocks are mined only on request, also by prepareChain', async () => {
  const [chain] = await startChains([sepolia], { mineNothing: true })
  if (!chain) throw new Error('not started')
  const data = encode(token, 'transfer', [payee, 1n])
  const from = account(1).address
  const transaction = { from, to: sepolia.asset.address, data }
  const hash = (await chain.rpc('eth_sendTransaction', [transaction])) as Hex
  expect(await chain.rpc('eth_getTransactionReceipt', [hash])).toBeNull()
  await mine(chain)
  expect((await receiptOf(chain, hash)).status).toBe('0x1')
  await setAutomine(chain, true)
  const second = (await chain.rpc('eth_sendTransaction', [transaction])) as Hex
  expect((await receiptOf(chain, second)).status).toBe('0x1')
  await chain.stop()
})

test('the accounts are funded, and the node has their keys only with hasKeys', async () => {
  for (const hasKeys of [false, true]) {
    const chain = await startChain({ chainId: 1, hasKeys })
    const signing = chain.rpc('eth_sign', [payee, '0x00'])
    if (hasKeys) expect(await signing).toMatch(/^0x[0-9a-f]{130}$/)
    else expect(await outcomeOf(signing)).toThrow('No Signer available')
    const held = (await chain.rpc('eth_accounts', [])) as Address[]
    expect(held.map((each) => getAddress(each)).sort()).toEqual(
      accounts.map(({ address }) => address).sort(),
    )
    for (const { address } of accounts)
      expect(await chain.rpc('eth_getBalance', [address, 'latest'])).toBe('0x21e19e0c9bab2400000')
    await chain.stop()
  }
})

test('stop leaves no process and can be called twice', async () => {
  const chain = await startChain({ chainId: 1 })
  expect(await chain.rpc('eth_chainId', [])).toBe('0x1')
  await chain.stop()
  await chain.stop()
  expect(() => process.kill(chain.pid, 0)).toThrow('ESRCH')
})

test('the anvil that a launcher runs as its child ends with it', async () => {
  const launcher = join(import.meta.dir, '../..', 'node_modules', '.bin', 'anvil')
  const anvil = await startAnvil([], launcher)
  const socket = connect(anvil.port, '127.0.0.1')
  const end = new Promise((ended) => socket.once('close', ended))
  socket.on('error', () => undefined)
  await new Promise((connected) => socket.once('connect', connected))
  await anvil.stop()
  await end
  expect(await outcomeOf(fetch(`http://127.0.0.1:${anvil.port}`))).toThrow()
})

test('anvil ends with its parent, even by SIGKILL', async () => {
  const script = `
    import { startChain } from ${JSON.stringify(`${import.meta.dir}/../../src/demo/chains`)}
    console.log((await startChain(1)).port)
    setInterval(() => {}, 60_000)`
  const parent = Bun.spawn([process.execPath, '-e', script], { stdout: 'pipe' })
  const { value } = await parent.stdout.getReader().read()
  const socket = connect(Number(new TextDecoder().decode(value)), '127.0.0.1')
  const { promise: opened, resolve: open } = Promise.withResolvers<void>()
  const { promise: closed, resolve: close } = Promise.withResolvers<void>()
  socket
    .on('connect', open)
    .on('error', () => close())
    .on('close', () => close())
  await opened
  parent.kill('SIGKILL')
  await closed
})

test('error: the output of an anvil that does not start is in the error', async () => {
  expect(await outcomeOf(startChain({ chainId: 1, extraArgs: ['--nonsense'] }))).toThrow(
    "anvil did not start: error: unexpected argument '--nonsense'",
  )
})
