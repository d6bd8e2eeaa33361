import{a,b}from"./chunk-L6P3SWOO.js";import"./chunk-FJ45RBS6.js";import"./chunk-53OLFRBG.js";import"./chunk-WJXEU2RT.js";import"./chunk-TWSSEVJ3.js";export{a as Lineage,b as LineageGraph};
