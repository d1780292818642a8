import { expect, test } from 'bun:test'
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import * as List from './List'

const root = join(import.meta.dir, '../..')

test('each bug of the list can be put into the code, and names a test', async () => {
  const mutants = List.parse(await Bun.file(List.path).text())
  expect(await List.findFaults(mutants, root)).toEqual([])
  expect(mutants.length).toBeGreaterThanOrEqual(100)
  const files = new Set(mutants.flatMap(({ test: named }) => named?.file ?? []))
  expect([...files].filter((file) => !existsSync(join(root, file)))).toEqual([])
  const known = mutants.filter(({ survives }) => survives !== undefined)
  expect(known.length * 20).toBeLessThanOrEqual(mutants.length)
})

test('error: a bug whose text is missing or not unique is named with its line', async () => {
  const [mutant] = List.parse(
    '--- test/mutants/mutants.test.ts\n\n# A bug.\n- ab\n- c\n+ d\ntest chain/wire: x: y',
  )
  if (mutant === undefined) throw new Error('none was read')
  expect(mutant).toMatchObject({ line: 3, meaning: 'A bug.', search: 'ab\nc', replacement: 'd' })
  expect(mutant.test).toEqual({ file: 'test/chain/wire.test.ts', pattern: 'x: y' })
  expect(List.apply(mutant, '1 ab\nc 2')).toBe('1 d 2')
  expect(List.apply(mutant, 'ab\nc ab\nc')).toBeUndefined()
  expect(await List.findFaults([{ ...mutant, search: 'not here: \t' }], root)).toHaveLength(1)
  expect(() => List.parse('something else')).toThrow('line 1')
})
