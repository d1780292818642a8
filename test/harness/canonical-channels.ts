import { join } from 'node:path'
import type { Hex } from 'viem'

/**
 * As a preload of bunfig.toml: with TURNPIKE_CANONICAL_CHANNELS the chains of tests have x402's own
 * contracts of payment channels in place of those of the demo. The variable names a folder with the
 * creation code of each, its arguments included, as hexadecimal text in `<address>.hex`. CREATE2
 * checks it: other code lands on another address, and `prepareChain` throws.
 */
const folder = process.env.TURNPIKE_CANONICAL_CHANNELS

const salts: Readonly<Record<string, Hex>> = {
  '0x4020074e9dF2ce1deE5A9C1b5c3f541D02a10003':
    '0x000000000000000000000000000000000000000000000000e000000005be885c',
  '0x4020806089470a89826cB9fB1f4059150b550004':
    '0x0000000000000000000000000000000000000000000000001800000007a95284',
  '0x4020425FAf3B746C082C2f942b4E5159887B0005':
    '0x000000000000000000000000000000000000000000000000f800000001a5d4ff',
}

if (folder !== undefined) {
  const { deployed, placed } = await import('../../src/demo/contracts/artifacts')
  for (const { address, artifact } of placed) {
    const salt = salts[address]
    if (salt === undefined) throw new Error(`no salt is known for ${address}`)
    const text = await Bun.file(join(folder, `${address}.hex`)).text()
    deployed.push({ address, salt, bytecode: text.trim() as Hex })
    artifact.deployedBytecode = '0x'
  }
}
