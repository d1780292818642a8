/** Maps what is not null: prepared statements pass nulls to the maps of columns, too. */
export function nullable<In, Out>(value: In, map: (value: In) => Out): Out {
  return value === null ? (null as Out) : map(value)
}
