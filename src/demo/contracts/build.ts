import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import solc from 'solc'

type Output = {
  errors?: { severity: string; formattedMessage: string }[]
  contracts: Record<string, Record<string, Contract>>
}
type Contract = {
  abi: unknown
  evm: { bytecode: { object: string }; deployedBytecode: { object: string } }
}

const directory = import.meta.dir
const sources = [
  'Signatures.sol',
  'Stablecoin.sol',
  'ExactPermit2Proxy.sol',
  'SmartWallet.sol',
  'StockMarket.sol',
]
const published = [
  'Stablecoin',
  'ExactPermit2Proxy',
  'SmartWallet',
  'GreedyWallet',
  'StockRegistry',
  'StockToken',
  'PriceFeed',
  'LiquidityProvider',
]

/** Path of the compiled contracts. */
export const artifactsPath = join(directory, 'artifacts.generated.json')

/**
 * Compiles the contracts of this folder to the text of artifacts.generated.json. The same sources
 * give the same text on every machine, because no metadata hash is appended. Throws with the
 * compiler's messages.
 */
export function compile(): string {
  const input = {
    language: 'Solidity',
    sources: Object.fromEntries(
      sources.map((name) => [name, { content: readFileSync(join(directory, name), 'utf8') }]),
    ),
    settings: {
      optimizer: { enabled: true, runs: 200 },
      evmVersion: 'cancun',
      metadata: { appendCBOR: false, bytecodeHash: 'none' },
      outputSelection: {
        '*': { '*': ['abi', 'evm.bytecode.object', 'evm.deployedBytecode.object'] },
      },
    },
  }
  const output = JSON.parse(solc.compile(JSON.stringify(input))) as Output
  const messages = (output.errors ?? []).map((error) => error.formattedMessage)
  if (messages.length > 0) throw new Error(messages.join('\n'))
  const artifacts = Object.values(output.contracts)
    .flatMap((contracts) => Object.entries(contracts))
    .filter(([name]) => published.includes(name))
    .map(([name, { abi, evm }]) => [
      name,
      {
        abi,
        bytecode: `0x${evm.bytecode.object}`,
        deployedBytecode: `0x${evm.deployedBytecode.object}`,
      },
    ])
  return `${JSON.stringify(Object.fromEntries(artifacts))}\n`
}

if (import.meta.main) await Bun.write(artifactsPath, compile())
